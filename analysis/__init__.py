"""Run records -> numbers -> tables. Reads run directories through ``experiments.run_record`` and nothing else of the project."""

"""The Policy protocol on verl: FSDP2 trains, vLLM samples, Ray holds both. Importing this package loads none of them."""

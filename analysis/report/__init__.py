"""``python -m analysis report``: everything that the run records say, as one page that needs no network and no server.

``gather`` collects what is shown, ``evidence`` gives every number's runs an anchor, ``markup`` turns data into safe HTML, ``sections``
and ``appendix`` lay it out, ``document`` joins them. style.css and script.js are put into the page.
"""

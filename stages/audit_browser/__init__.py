"""The browser of `corpusmill audit serve`: a corpus's removals, documents and reviews as pages that need no script.

Each page has a module: `overview`, `removals`, `rule`, `documents`, `thresholds`, `review`. They read what is `asked`, put it to
the logs through `questions`, within bounds of time and memory, and have the modules of `manifests.audit` and `texts` answer;
`pages` writes that into templates. `browser` is what they share, `access` says who may ask, and `application` puts them together.
"""

"""The browser of `corpusmill audit serve`: a corpus's removals, documents and reviews as pages that need no script.

`questions` asks the logs within bounds of time and memory, `texts` and the modules of `manifests.audit` answer, `pages` writes
what was answered into templates, `access` says who may ask, and `application` puts them together."""

"""The intake of reports over HTTP."""

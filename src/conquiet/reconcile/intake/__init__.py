"""Taking reports in, over HTTP."""

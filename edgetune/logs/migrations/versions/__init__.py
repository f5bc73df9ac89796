"""One file per schema revision, never changed once released."""

"""Languages of texts and questions: their detection, and tables of words."""

"""Mnemic and its peers, side by side: the same texts, questions and machine, and no model is called."""

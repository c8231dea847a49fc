"""The recall engine: what is kept of a text to find it again, and how a question is answered from it."""

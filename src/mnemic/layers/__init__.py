"""What lies between the features and a back-end: each layer is a store over a store."""

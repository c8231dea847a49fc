"""What back-ends over keys and values share: all of a store but where its bytes lie."""

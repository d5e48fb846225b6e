"""What makes fixtures/ and the goldens of crates/, again and bit for bit."""

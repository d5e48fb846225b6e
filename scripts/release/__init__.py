"""What a release packs, and what is asked of a wheel."""

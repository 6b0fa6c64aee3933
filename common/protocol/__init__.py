"""What the roles say to each other and the mathematics they have in common, without IO."""

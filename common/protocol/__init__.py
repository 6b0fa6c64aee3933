"""The messages between the roles and the mathematics that they share, without IO."""

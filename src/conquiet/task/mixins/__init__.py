"""What makes a class a consumer."""

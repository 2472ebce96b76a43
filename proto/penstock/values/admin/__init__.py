"""What operators see: values of AdminService."""

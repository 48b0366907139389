"""What people see of a stream: facts joined once, and pictures, tables and pages of them."""

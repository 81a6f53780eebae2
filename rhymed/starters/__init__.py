"""`rhymed init`: folders to start from, made of the examples and configurations that the package contains."""

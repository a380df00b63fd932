"""Market data: bars from every source, their validation, features, costs and splits."""

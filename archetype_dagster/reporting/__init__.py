"""Pictures and self-contained HTML pages for people, beside the same numbers as JSON, CSV and Parquet."""

"""The stages of the lineage graph as plain functions: what each depends on and how it is made, whoever runs it."""

"""Values of other libraries, by their own means: tables, sparse arrays, tensors, models of pydantic."""

"""How attention is computed once it is known which keys a query sees."""

"""How a recipe runs: recipe, plan, Ray execution, receipts, command line."""

"""What is declared, as plain values: names, arguments, bindings, filters, standing selectors."""

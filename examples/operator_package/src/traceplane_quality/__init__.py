"""An operator that keeps bad rows apart from good ones: `spec` describes it, `split` is its code."""

"""Parts that several providers share; none of them imports a provider."""

"""Sessions: claims of users on sandboxes that are ready when they are used."""

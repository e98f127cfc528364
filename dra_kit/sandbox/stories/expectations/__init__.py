"""What a story expects, what is known of its objects, and whether the two agree. Mostly pure."""

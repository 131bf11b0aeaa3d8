"""The exercises of the course: one module per lesson, one name per exercise. ``registry`` finds them."""

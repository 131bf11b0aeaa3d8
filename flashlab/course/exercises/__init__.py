"""The exercises of the course: one module or package per lesson, one name per exercise. ``registry`` finds them."""

"""The exercises of the course: one module a lesson, one name an exercise."""

"""Run and judge an attempt at an exercise. This package contains no lesson.

``exercise`` defines exercises, ``verdict`` decides whether an attempt is right, and two runners run the attempt:
``forked`` in a process of its own, ``in_place`` in a thread with a time limit.
"""

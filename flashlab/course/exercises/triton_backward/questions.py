"""Numbers to predict: products, passes, and what a forgotten line changes."""

from flashlab.grading.exercise import Question

products = Question(
    answer=7,
    because="dK/dV: S, dP, dV, dK. dQ: S, dP, dQ. Each kernel rebuilds P and needs dP for itself: 4 + 3.",
    hints=(
        "The one loop in numpy did five for a pair of tiles: S, dV, dP, dQ, dK. Which kernel needs which?",
        "dK needs dS, and dQ needs dS. What does dS need?",
        "dS needs P, so S, and dP. Both kernels do these two.",
    ),
    wrong=(
        (5, "That is one kernel that does it all. Neither of two kernels can read the other's registers."),
        (6, "S is done twice, yes. And dP, which dS needs too?"),
        (8, "dV needs P alone, and only the kernel with the keys outside computes it."),
        (10, "Each kernel leaves out what the other one owns."),
    ),
    rel=0,
    minutes=3,
)

passes = Question(
    answer=25,
    because="K and V 1 + 4 each: 10. Q 4 + 1. dO 4 + 1, and 1 more for delta, with O's 1. dQ, dK, dV written once: 3.",
    hints=(
        "Each kernel reads once what it holds, and 4 times what passes by it.",
        "Keys outside: K, V once, Q, dO 4 times. Queries outside: Q, dO once, K, V 4 times. And the small kernel?",
        "10 and 10 for the two large kernels; O and dO for delta; and each gradient is written once.",
    ),
    wrong=(
        (20, "That was the one loop in numpy, whose dQ travelled. Here two kernels read."),
        (23, "Add the small kernel: delta needs O and dO."),
        (22, "And the gradients have to be written: three, once each."),
        (24, "delta needs two tensors, O and dO."),
    ),
    rel=0,
    minutes=4,
)

unharmed = Question(
    answer="dV",
    because="dV = Pᵀ dO has no dS in it. dQ and dK are dS times something.",
    hints=(
        "Where does delta enter?",
        "delta enters dS only: dS = P ∘ (dP − delta).",
        "dQ = scale · dS K, dK = scale · dSᵀ Q, dV = Pᵀ dO.",
    ),
    wrong=(
        ("dQ", "dQ is dS times K, and delta is in dS."),
        ("dK", "dK is dSᵀ times Q, and delta is in dS."),
    ),
    minutes=1,
)

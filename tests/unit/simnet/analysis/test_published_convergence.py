"""What publications say of trainings that nobody here made."""

from simnet.analysis import published_convergence


def test_what_is_published_of_others_is_left_out() -> None:
    assert published_convergence.of({"binsgdm"}) == ()
    assert all("diloco" in one.kinds for one in published_convergence.of({"diloco"}))

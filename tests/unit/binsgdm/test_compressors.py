"""What scripts of users say is still there under its former name."""

from tests.helpers.needs import needs

needs("torch")


def test_the_former_names_are_the_same_objects() -> None:
    from binsgdm.compressors import hook, one_bit_adam, one_bit_attach, registry
    from binsgdm.compressors import registry as systems
    from binsgdm.optimizers import one_bit_adam as optimizers
    from binsgdm.parallel import ddp
    from binsgdm.parallel import ddp_hook as systems_hook

    assert hook.compress_gradients is systems_hook.compress_gradients
    assert registry.register is systems.register
    assert registry.SYSTEMS is systems.SYSTEMS
    assert one_bit_adam.OneBitAdam is optimizers.OneBitAdam
    assert one_bit_attach.attach_one_bit_adam is ddp.attach_one_bit_adam

"""Which versions of JAX are supported: from the first whose runtime takes Flashlift's calls on."""

try:
    import jax
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError("flashlift.jax needs JAX: pip install 'flashlift[jax]'", name="jax") from None

OLDEST = (0, 9, 2)

if jax.__version_info__ < OLDEST:
    oldest = ".".join(map(str, OLDEST))
    raise ImportError(
        f"flashlift.jax is for jax {oldest} and later; this is jax {jax.__version__}. To go on, install such a jax: "
        "pip install 'flashlift[jax]'"
    )

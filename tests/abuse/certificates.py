"""Certificates for servers on this machine, made by openssl: two authorities, and the certificates they signed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Authority", "Signed"]


@dataclass(frozen=True)
class Signed:
    certificate: Path
    key: Path


class Authority:
    """Signs certificates for given names."""

    def __init__(self, folder: Path, name: str) -> None:
        if shutil.which("openssl") is None:
            raise RuntimeError(
                "these tests make certificates with openssl, which is not on PATH: install openssl"
            )
        self._folder, self._name = folder, name
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl(
            *(
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ),
            *("-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.certificate)),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def sign(self, *names: str) -> Signed:
        """Sign a certificate for these names, as in `DNS:localhost` and `IP:127.0.0.1`."""
        place = self._folder / f"{self._name}-{'-'.join(names).replace(':', '-')}"
        key, request, extensions, certificate = (
            place.with_name(f"{place.name}{ending}") for ending in (".key", ".csr", ".ext", ".crt")
        )
        _openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", "/CN=a server of the tests", "-keyout", str(key), "-out", str(request)),
        )
        extensions.write_text(f"subjectAltName={','.join(names)}\nbasicConstraints=critical,CA:FALSE\n")
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(certificate)),
        )
        return Signed(certificate, key)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

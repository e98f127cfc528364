"""Renewing an OpenID Connect ID token, for the ``oidc`` auth provider of a kubeconfig."""

from __future__ import annotations

import ssl

import aiohttp

from dra_kit.errors import ConfigurationError


class OpenIDRequestor:
    """Trades a refresh token for a new ID token (OpenID Connect Core 1.0, section 12).

    It has the interface of the class of the same name in kubernetes-asyncio, which it replaces: that one (36.1.0) does
    not verify the provider's certificate unless the kubeconfig has its CA, and fails if it has.

    Args:
        client_id: of the kubeconfig's user.
        client_secret: of the kubeconfig's user.
        issuer_url: the provider, which serves ``/.well-known/openid-configuration``.
        ssl_ca_cert: file with the provider's CA, None for those of the system.
    """

    def __init__(self, client_id: str, client_secret: str, issuer_url: str, ssl_ca_cert: str | None = None) -> None:
        self._authorization = aiohttp.encode_basic_auth(client_id, client_secret)
        self._issuer_url = issuer_url.rstrip("/")
        self._ssl = ssl.create_default_context(cafile=ssl_ca_cert)

    async def refresh_token(self, refresh_token: str) -> dict[str, str]:
        """Ask for new tokens.

        Args:
            refresh_token: the one that was issued last.

        Returns:
            ``id_token`` and ``refresh_token``; the latter is the old one where the provider does not rotate it.

        Raises:
            ConfigurationError: the provider does not answer, or refuses.
        """
        try:
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._ssl),
                timeout=aiohttp.ClientTimeout(total=30),
                raise_for_status=True,
                trust_env=True,
            ) as session:
                async with session.get(f"{self._issuer_url}/.well-known/openid-configuration") as response:
                    endpoint = (await response.json())["token_endpoint"]
                grant = {"grant_type": "refresh_token", "refresh_token": refresh_token}
                headers = {"Authorization": self._authorization}
                async with session.post(endpoint, data=grant, headers=headers) as response:
                    answer = await response.json()
                return {"id_token": answer["id_token"], "refresh_token": answer.get("refresh_token", refresh_token)}
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"OpenID Connect provider {self._issuer_url} gave no new ID token: {error!r}; log in again"
            ) from error

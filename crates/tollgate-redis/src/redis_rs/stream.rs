//! What the calls to a server are written to: redis-rs is given a stream, so that the sockets' settings and TLS
//! are those that fred is given.

use std::io;

use fred::types::config::{Config, Server, ServerConfig};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

use crate::config;

/// Any of them.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Makes one attempt to connect to the server of `config`.
pub(crate) async fn open(config: &Config) -> io::Result<Box<dyn Stream>> {
    match &config.server {
        ServerConfig::Centralized { server } => {
            let stream = tcp(server).await?;
            #[cfg(feature = "tls")]
            if let Some(tls) = &config.tls {
                return Ok(Box::new(wrap(tls, server, stream).await?));
            }
            Ok(Box::new(stream))
        }
        ServerConfig::Unix { path } => Ok(Box::new(UnixStream::connect(path).await?)),
        // What else fred knows are several servers.
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// An IPv6 address stands in brackets in a URL, and nowhere else.
fn host(server: &Server) -> &str {
    server.host.trim_matches(['[', ']'])
}

async fn tcp(server: &Server) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host(server), server.port)).await?;
    // Calls are gathered by the connection's task; what it writes is not to wait for more.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&config::keepalive())?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(config::USER_TIMEOUT))?;
    Ok(stream)
}

#[cfg(feature = "tls")]
async fn wrap(
    tls: &fred::types::config::TlsConfig,
    server: &Server,
    stream: TcpStream,
) -> io::Result<impl Stream> {
    let fred::types::config::TlsConnector::Rustls(connector) = &tls.connector;
    let name = server.tls_server_name.as_deref().unwrap_or(host(server));
    let name = rustls::pki_types::ServerName::try_from(name.to_owned());
    connector
        .connect(name.map_err(io::Error::other)?, stream)
        .await
}

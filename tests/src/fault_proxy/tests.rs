use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

use tokio::time::Instant;

use super::*;
use crate::RedisServer;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

struct Client(TcpStream);

impl Client {
    fn connect(proxy: &FaultProxy) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).expect("a connection");
        let timeout = Some(Duration::from_millis(1_000));
        stream.set_read_timeout(timeout).expect("a socket option");
        Self(stream)
    }

    fn ping(&mut self) -> Result<String, ErrorKind> {
        self.0.write_all(PING).map_err(|error| error.kind())?;
        self.read()
    }

    fn read(&mut self) -> Result<String, ErrorKind> {
        let mut bytes = [0; 100];
        let read = self.0.read(&mut bytes).map_err(|error| error.kind())?;
        Ok(String::from_utf8_lossy(&bytes[..read]).into_owned())
    }
}

const SILENCE: Result<String, ErrorKind> = Err(ErrorKind::WouldBlock);
const RESET: Result<String, ErrorKind> = Err(ErrorKind::ConnectionReset);

fn assert_pong(reply: &Result<String, ErrorKind>) {
    assert_eq!(reply.as_deref(), Ok("+PONG\r\n"));
}

#[test]
fn replies_pass_are_delayed_and_held_back() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let mut client = Client::connect(&proxy);
    assert_pong(&client.ping());
    let start = Instant::now();
    proxy.set(Fault::DelayReplies(Duration::from_millis(100)));
    assert_pong(&client.ping());
    assert!(start.elapsed() >= Duration::from_millis(100));
    proxy.set(Fault::HoldReplies);
    assert_eq!(client.ping(), SILENCE);
    assert_eq!((server.calls("ping"), proxy.commands("ping")), (3, 3));
    proxy.set(Fault::None);
    assert_pong(&client.read());
    assert_eq!((proxy.requests(), proxy.connections()), (3, 1));
}

#[test]
fn lost_and_cut_replies_end_in_a_reset() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let mut client = Client::connect(&proxy);
    proxy.set(Fault::LoseReplies);
    assert_eq!(client.ping(), SILENCE);
    assert_eq!(server.calls("ping"), 1);
    proxy.set(Fault::None);
    assert_eq!(client.read(), RESET);

    proxy.set(Fault::CutReplies);
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ping().as_deref(), Ok("+"));
    assert_eq!(client.read(), RESET);
    assert_eq!(server.calls("ping"), 2);
}

#[test]
fn a_black_hole_keeps_everything_until_it_ends() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let mut old = Client::connect(&proxy);
    assert_pong(&old.ping());
    proxy.set(Fault::BlackHole);
    let mut new = Client::connect(&proxy);
    assert_eq!((old.ping(), new.ping()), (SILENCE, SILENCE));
    assert_eq!(server.calls("ping"), 1);
    proxy.set(Fault::None);
    assert_pong(&old.read());
    assert_pong(&new.read());

    proxy.silence_present();
    assert_eq!(old.ping(), SILENCE);
    assert_pong(&Client::connect(&proxy).ping());
}

#[test]
fn connections_are_reset_and_refused() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let mut client = Client::connect(&proxy);
    assert_pong(&client.ping());
    proxy.reset_present();
    assert_eq!(client.read(), RESET);
    let mut client = Client::connect(&proxy);
    assert_pong(&client.ping());

    proxy.set(Fault::Refuse);
    assert_eq!(client.read(), RESET);
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()));
    assert_eq!(
        refused.expect_err("nobody listens").kind(),
        ErrorKind::ConnectionRefused
    );
    proxy.set(Fault::Reset);
    assert!(matches!(
        Client::connect(&proxy).ping(),
        Err(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
    ));
    proxy.set(Fault::None);
    assert_pong(&Client::connect(&proxy).ping());
}

#[test]
fn a_proxy_may_start_refusing() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start_with(server.port(), Fault::Refuse);
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).is_err());
    proxy.set(Fault::None);
    assert_pong(&Client::connect(&proxy).ping());
}

#[test]
fn new_connections_go_to_the_new_target() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = FaultProxy::start(old.port());
    let mut client = Client::connect(&proxy);
    assert_pong(&client.ping());
    proxy.retarget(new.port());
    assert_pong(&client.ping());
    assert_pong(&Client::connect(&proxy).ping());
    assert_eq!((old.calls("ping"), new.calls("ping")), (2, 1));
}

//! A network that takes its time.

use std::{
    io,
    net::{self, Ipv4Addr},
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime,
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// Passes bytes on to a port of loopback, and what comes back so much later, in a thread of its own. It ends with
/// the process.
#[derive(Clone, Copy, Debug)]
pub struct DelayProxy {
    port: u16,
}

impl DelayProxy {
    /// # Errors
    ///
    /// If no port can be bound.
    pub fn start(target: u16, delay: Duration) -> io::Result<Self> {
        let listener = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::spawn(move || runtime.block_on(accept(listener, target, delay)));
        Ok(Self { port })
    }

    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

async fn accept(listener: net::TcpListener, target: u16, delay: Duration) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::spawn(pass(from_client, to_server, Duration::ZERO));
        tokio::spawn(pass(from_server, to_client, delay));
    }
}

/// Passes bytes on, each so long after it came.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) -> io::Result<()> {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let writer = tokio::spawn(async move {
        while let Some((due, bytes)) = receiver.recv().await {
            // The timer counts in milliseconds; what is due is not put to sleep.
            if due > Instant::now() {
                sleep_until(due).await;
            }
            to.write_all(&bytes).await?;
        }
        io::Result::Ok(())
    });
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            break;
        }
        if sender
            .send((Instant::now() + delay, buffer[..length].to_vec()))
            .is_err()
        {
            break;
        }
    }
    drop(sender);
    writer.await?
}

//! Futures that outlive their caller.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

/// Polls a future in place, and if it is dropped half-way, lets it run to its end in a task.
///
/// fred skips a command that timed out in its queue, but one whose future was dropped it still sends, maybe
/// much later, and the tenant pays for a request that nobody remembers. So the future of a command has to
/// live until its timeout.
pub(crate) struct RunOut<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> RunOut<T> {
    pub(crate) fn new(runtime: Handle, future: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            future: Some(Box::pin(future)),
            runtime,
        }
    }
}

impl<T: Send + 'static> Future for RunOut<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let future = self
            .future
            .as_mut()
            .expect("RunOut polled after completion");
        let output = ready!(future.as_mut().poll(cx));
        self.future = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for RunOut<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.runtime.spawn(future);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{sync::oneshot, time};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_future_that_is_dropped_half_way_still_ends() {
        let (sender, receiver) = oneshot::channel();
        let slow = RunOut::new(Handle::current(), async {
            time::sleep(Duration::from_millis(10)).await;
            sender.send(()).expect("the test waits");
        });
        assert!(time::timeout(Duration::from_millis(1), slow).await.is_err());
        assert_eq!(receiver.await, Ok(()));
    }
}

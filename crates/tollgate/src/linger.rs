//! Refusing a request whose body is still on its way.

use std::{future::poll_fn, pin::pin, time::Duration};

use http::{HeaderMap, HeaderValue, Request, Version, header};
use http_body::Body;
use tokio::runtime::Handle;

/// How long the rest of a refused request is read for.
const LINGER: Duration = Duration::from_secs(5);

/// Gives up the connection of a refused HTTP/1 request whose body has not been read, in a way that the
/// client still reads the answer.
///
/// The connection cannot be used again, since the next request could only follow the body; the answer says
/// so. But a socket that is closed with unread data in it is reset, and a client that is still sending may
/// then lose the answer ([RFC 9112, section 9.6]). So what the client sends is read and dropped for up to 5
/// seconds, while the answer is already on its way. A client that waits for `100 Continue` has sent nothing
/// and is not asked to.
///
/// [RFC 9112, section 9.6]: https://www.rfc-editor.org/rfc/rfc9112#section-9.6
pub(crate) fn close<B>(request: Request<B>, answer: &mut HeaderMap)
where
    B: Body + Send + 'static,
    B::Data: Send,
{
    if request.version() >= Version::HTTP_2 || request.body().is_end_stream() {
        return;
    }
    answer.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if request.headers().contains_key(header::EXPECT) {
        return;
    }
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(tokio::time::timeout(LINGER, drain(request.into_body())));
    }
}

async fn drain<B: Body>(body: B) {
    let mut body = pin!(body);
    while let Some(Ok(_)) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {}
}

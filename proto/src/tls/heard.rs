//! A client's connection that remembers how it failed. gRPC tells only that a
//! transport broke; why it did stands in the error of the read that broke it, or in
//! the first bytes of somebody who speaks another protocol.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A byte stream.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for S {}

/// What was heard on a connection that matters when it breaks.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// Why TLS ended it.
    pub error: Option<rustls::Error>,
    /// The very first byte that came.
    pub first: Option<u8>,
}

impl Heard {
    /// The other side began with a TLS record: an alert or a handshake.
    pub fn sounds_like_tls(&self) -> bool {
        matches!(self.first, Some(0x15 | 0x16))
    }
}

/// A connection that remembers.
pub struct Listening {
    inner: Box<dyn Io>,
    heard: Arc<Mutex<Heard>>,
}

impl Listening {
    /// Remembers what is heard on `inner`.
    pub fn new(inner: Box<dyn Io>) -> (Self, Arc<Mutex<Heard>>) {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let listening = Self {
            inner,
            heard: heard.clone(),
        };
        (listening, heard)
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && let Some(tls) = tls_error(error)
        {
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.error.get_or_insert_with(|| tls.clone());
        }
        result
    }
}

/// What rustls has to say, if it is rustls that failed.
pub fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

impl AsyncRead for Listening {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = ready!(Pin::new(&mut self.inner).poll_read(cx, buf));
        if let Some(byte) = buf.filled().get(before) {
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.first.get_or_insert(*byte);
        }
        Poll::Ready(self.note(result))
    }
}

impl AsyncWrite for Listening {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes));
        Poll::Ready(self.note(result))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.inner).poll_flush(cx));
        Poll::Ready(self.note(result))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bufs));
        Poll::Ready(self.note(result))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

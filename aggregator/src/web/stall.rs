//! Cuts off who reads nothing: a browser that stands keeps neither memory nor a
//! place for longer than this.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::live::totals::Totals;

pub(super) struct Stall<T> {
    inner: T,
    totals: Arc<Totals>,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<T> Stall<T> {
    /// A write may wait for the other side for `patience`.
    pub(super) fn new(inner: T, patience: Duration, totals: Arc<Totals>) -> Self {
        Self {
            inner,
            totals,
            patience,
            waiting: None,
        }
    }

    fn waited<R>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let patience = self.patience;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        if waiting.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.totals.cut_off.fetch_add(1, Ordering::Relaxed);
        self.waiting = None;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stall<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Stall<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.waited(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(cx);
        self.waited(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn who_reads_is_kept_and_who_does_not_is_cut_off() {
        let totals = Arc::new(Totals::default());
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = Stall::new(near, Duration::from_millis(50), totals.clone());
        let mut sink = [0; 64];
        for _ in 0..100 {
            near.write_all(&[1; 64]).await.expect("is read");
            far.read_exact(&mut sink).await.expect("is there");
        }
        assert_eq!(totals.cut_off.load(Ordering::Relaxed), 0);
        near.write_all(&[1; 64]).await.expect("fits");
        let error = near.write_all(&[1; 64]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(totals.cut_off.load(Ordering::Relaxed), 1);
    }
}

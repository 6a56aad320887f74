//! As much of HTTP as an admin interface on a local address needs: one request, one
//! answer, no connection kept.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Metrics of a proxy have some hundred kilobytes.
const MAX_ANSWER: u64 = 8 << 20;
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Asks; the body of an answer that says 200, else what it says.
pub(super) async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> Result<String, String> {
    let talking = async {
        let mut stream = TcpStream::connect(address).await?;
        // By 1.0 the answer ends where the connection does, in one piece.
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = tokio::time::timeout(ANSWERS_WITHIN, talking)
        .await
        .map_err(|_| format!("no answer to {method} {path} within 2 s"))?
        .map_err(|error| format!("{method} {path}: {error}"))?;
    read(&answer).map_err(|why| format!("{method} {path}: {why}"))
}

fn read(answer: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or("what answers does not speak HTTP")?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status == "200" {
        Ok(body.to_owned())
    } else {
        let said: String = body.trim().chars().take(200).collect();
        Err(format!("it answers {status} {said}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_200_is_an_answer() {
        let ok = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello\r\n\r\n";
        assert_eq!(read(ok).as_deref(), Ok("hello\r\n\r\n"));
        let bad = b"HTTP/1.1 400 Bad Request\r\n\r\n\"bad namespace json\"";
        assert_eq!(
            read(bad).expect_err("refused"),
            "it answers 400 \"bad namespace json\""
        );
        assert!(read(b"5.7.25-TiDB").is_err());
    }

    #[tokio::test]
    async fn a_request_is_asked_and_its_answer_read_to_the_end() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
            .await
            .expect("a port");
        let address = listener.local_addr().expect("bound");
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut seen = Vec::new();
            while !seen.ends_with(b"{}") {
                let mut byte = [0u8; 1];
                stream.read_exact(&mut byte).await.expect("more");
                seen.push(byte[0]);
            }
            let answer = b"HTTP/1.0 200 OK\r\n\r\ndone";
            stream.write_all(answer).await.expect("written");
            String::from_utf8(seen).expect("text")
        });
        let answer = ask(address, "PUT", "/x", "{}").await;
        assert_eq!(answer.as_deref(), Ok("done"));
        let seen = serving.await.expect("no panic");
        assert!(seen.starts_with("PUT /x HTTP/1.0\r\n"), "{seen}");
        assert!(seen.contains("Content-Length: 2\r\n"), "{seen}");
    }
}

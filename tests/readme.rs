//! What the README tells a newcomer to send is answered.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use serde_json::Value;
use server::Server;

/// Path and body of every `curl http://127.0.0.1:30000/PATH ... -d '{...}'` in a text.
fn requests(text: &str) -> Vec<(String, Value)> {
    text.split("curl http://127.0.0.1:30000")
        .skip(1)
        .map(|rest| {
            let path = rest.split_whitespace().next().unwrap();
            let body = rest.split("-d '").nth(1).unwrap();
            let body = body.split('\'').next().unwrap();
            let body = serde_json::from_str(body)
                .unwrap_or_else(|error| panic!("the body of {path} is no JSON: {error}\n{body}"));
            (path.to_owned(), body)
        })
        .collect()
}

#[test]
fn every_request_of_the_readme_is_answered() {
    let text = include_str!("../README.md");
    let requests = requests(text);
    assert!(!requests.is_empty(), "the README shows a request");
    let server = Server::shared();
    for (path, mut body) in requests {
        body["stream"] = false.into();
        let answer = server.post(&path, &body).ok();
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(!content.is_empty(), "{path} answers {answer}");
    }
}

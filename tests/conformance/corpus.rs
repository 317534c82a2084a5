//! 200 requests of all kinds.

use serde_json::{Value, json};

use crate::server::{chat, with};

/// Prompts that the pair was not trained on, `per_group` of each of four groups.
fn held_out(per_group: usize) -> Vec<String> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/heldout_prompts.jsonl"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut prompts = Vec::new();
    // Group after group would give each variation below to one group only.
    for rank in 0..per_group {
        for group in ["code", "facts", "arithmetic", "explain"] {
            let mut own = lines.iter().filter(|line| line["group"] == group);
            let prompt = own.nth(rank).unwrap()["prompt"].as_str().unwrap();
            prompts.push(prompt.to_owned());
        }
    }
    prompts
}

fn tools() -> Value {
    let tool = |name: &str, about: &str, properties: Value, required: &str| {
        json!({"type": "function", "function": {"name": name, "description": about,
            "parameters": {"type": "object", "properties": properties, "required": [required]}}})
    };
    let weather = json!({"city": {"type": "string"}, "days": {"type": "integer"}});
    let timer = json!({"minutes": {"type": "integer"}});
    json!([
        tool("get_weather", "Weather for a city", weather, "city"),
        tool("set_timer", "Starts a timer", timer, "minutes")
    ])
}

fn tool_prompts() -> Vec<String> {
    let cities = [
        "Oslo", "Rome", "Paris", "Lima", "Cairo", "Tokyo", "Delhi", "Quito", "Bern", "Riga",
    ];
    let mut prompts = Vec::new();
    for (index, city) in cities.iter().enumerate() {
        let other = cities[(index + 3) % cities.len()];
        prompts.push(format!("What is the weather in {city}?"));
        prompts.push(format!("Weather in {city} and {other}?"));
        prompts.push(format!("Set a timer for {} minutes.", 3 + 7 * index));
        prompts.push(format!("Tell me something about {city}."));
    }
    prompts
}

/// Temperature and seed of a request.
fn sampling(index: usize) -> Value {
    let temperature = [0.0, 0.8, 0.0, 1.3][index / 4 % 4];
    json!({"temperature": temperature, "seed": 1_000 + index})
}

/// A held-out prompt with one of eight variations.
fn varied(index: usize, prompt: &str) -> Value {
    let extra = match index / 4 % 8 {
        0 | 5 => json!({}),
        1 => json!({"enable_thinking": true}),
        2 => json!({"stop": ["the", ".\n", "return", "is a"]}),
        3 => json!({"enable_thinking": true, "max_tokens": 20, "stop": " "}),
        4 => json!({"ignore_eos": true, "skip_special_tokens": false}),
        6 => json!({"presence_penalty": 0.7, "repetition_penalty": 1.2, "min_p": 0.02}),
        _ => json!({"stop": [", ", "\n\n"], "include_stop_str_in_output": true, "top_k": 40}),
    };
    with(with(chat(prompt), json!({"max_tokens": 64})), extra)
}

/// A prompt about tools with one of four variations.
fn calling(index: usize, prompt: &str) -> Value {
    let extra = match index / 4 % 4 {
        0 => json!({}),
        1 => json!({"enable_thinking": true}),
        2 => json!({"tool_choice": "required", "max_tokens": 40}),
        _ => json!({"stop": ["the", "it"], "parallel_tool_calls": false}),
    };
    let offered = json!({"max_tokens": 96, "tools": tools()});
    with(with(chat(prompt), offered), extra)
}

/// 152 held-out prompts, 40 about tools, 8 bound to a schema.
pub fn corpus() -> Vec<Value> {
    let mut bodies: Vec<Value> = Vec::new();
    for (index, prompt) in held_out(38).iter().enumerate() {
        bodies.push(with(varied(index, prompt), sampling(index)));
    }
    for (index, prompt) in tool_prompts().iter().enumerate() {
        bodies.push(with(calling(index, prompt), sampling(index * 5)));
    }
    let schema = json!({"type": "object", "additionalProperties": false,
        "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
        "required": ["city", "big"]});
    for index in 0..8 {
        let body = chat(&format!("Name city number {index}."));
        let format = json!({"type": "json_schema",
            "json_schema": {"name": "city", "schema": schema}});
        let bound = json!({"max_tokens": 64, "response_format": format});
        bodies.push(with(with(body, bound), sampling(index * 4)));
    }
    bodies
}

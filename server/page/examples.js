// examples.js: what may be asked to begin with. The demonstration model knows little but how to
// book tables when it has functions for that.

function tool(name, description, required, optional = []) {
  const properties = Object.fromEntries([...required, ...optional].map((p) => [p, { type: "string" }]));
  const parameters = { type: "object", properties, required };
  return { type: "function", function: { name, description, parameters } };
}

export const DEMO = {
  settings: { thinking: "off" },
  hint: "This is the small demonstration model: it finds restaurants and books tables, and knows little else.",
  questions: [
    "I want to find an Italian restaurant in San Jose",
    "I am looking for somewhere to eat tonight.",
  ],
  tools: [
    tool("FindRestaurants", "Find a restaurant of a particular cuisine in a city", ["cuisine", "city"],
      ["price_range", "has_live_music", "serves_alcohol"]),
    tool("ReserveRestaurant", "Reserve a table at a restaurant", ["restaurant_name", "city", "time"],
      ["date", "party_size"]),
  ],
};

export const EXAMPLES = {
  settings: {},
  hint: "Every answer shows how many tokens each step of the model gave.",
  questions: [
    "Write a function in C that reverses a string, and a test for it.",
    "Explain speculative decoding in three sentences.",
  ],
};

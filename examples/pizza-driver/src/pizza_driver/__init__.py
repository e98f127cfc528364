"""The kitchen.pizza.example DRA driver."""
